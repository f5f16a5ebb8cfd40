"""Detection of symmetries: the engine that walks a program, its axis terms, rules and equations."""
