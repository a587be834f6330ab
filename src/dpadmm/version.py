"""The version of this software."""

VERSION = "0.1.0"
