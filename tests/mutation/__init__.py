"""Mutation testing: does some test fail when a line that decides about privacy is changed?

Run ``make mutation``. The method and its limits are in docs/decisions/0013-mutation-testing.md.
"""
