"""Figures of commands, one file each, and their common style."""
