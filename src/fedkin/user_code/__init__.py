"""User-defined methods, networks and data: ``loading`` imports them, ``reference`` says what a
run keeps of them, ``method`` makes a method of a class and says what the class lacks."""
