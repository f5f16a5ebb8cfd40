"""The command line. Commands load torch and the rest when they run, so that help is instant."""

from .app import app, main

__all__ = ["app", "main"]
