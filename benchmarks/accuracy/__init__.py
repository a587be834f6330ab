"""The accuracy suite: ``auto`` and all other methods on 30 data sets."""
