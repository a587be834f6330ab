"""Drafts: study files generated from a public or dummy table, or from a data dictionary, for review."""

from dpadmm.studies.drafts.dictionary import columns_from_dictionary, draft_from_dictionary
from dpadmm.studies.drafts.draft import Draft, DraftColumn
from dpadmm.studies.drafts.table import draft_from_table
from dpadmm.studies.drafts.text import confirmed_text, evaluation_text, secured_text, statistics_text, study_text

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
