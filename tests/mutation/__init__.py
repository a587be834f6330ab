"""Mutation testing: does some test fail when a line that decides about privacy is changed?

``make mutation``; how it works and where it ends is in docs/decisions/0013-mutation-testing.md.
"""
