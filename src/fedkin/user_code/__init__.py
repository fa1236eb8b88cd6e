"""User-defined methods, networks and data: ``loading`` imports them, ``reference`` identifies and copies their code,
``method`` makes a method of a class and reports missing parts."""
