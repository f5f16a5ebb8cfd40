"""Options of the commands, as typer and their work read them; nothing here loads torch."""
