"""Detection of symmetries: an engine that walks through a program, with its axis terms, rules and equations."""
