"""Empirical tests of the shipped agent: is the privacy that is promised the privacy that is there?"""
