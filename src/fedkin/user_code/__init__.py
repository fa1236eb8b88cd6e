"""User-defined methods, networks and data: ``loading`` imports them, ``reference`` says what a run keeps of them."""
