"""How a command ends that Ctrl-C ended early."""


class Interrupted(Exception):
    """Ctrl-C ended a command early; the message says what is left of it."""
