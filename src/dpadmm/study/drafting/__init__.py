"""Drafts of studies: from a public or dummy table, or from a data dictionary, to a file to be looked at."""

from dpadmm.study.drafting.dictionary import columns_from_dictionary, draft_from_dictionary
from dpadmm.study.drafting.draft import Draft, DraftColumn
from dpadmm.study.drafting.table import draft_from_table
from dpadmm.study.drafting.text import confirmed_text, evaluation_text, secured_text, statistics_text, study_text

__all__ = [
    "Draft",
    "DraftColumn",
    "columns_from_dictionary",
    "confirmed_text",
    "draft_from_dictionary",
    "draft_from_table",
    "evaluation_text",
    "secured_text",
    "statistics_text",
    "study_text",
]
