"""An agent of a study with secure aggregation and its guard."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from masked import NAMES, ROWS, MaskedSite, masked_study

from dpadmm.errors import RefusalError
from dpadmm.methods.pgd import PublicState
from dpadmm.sites.agent import Agent
from dpadmm.trusted.masking import bitmap_of


def test_a_masked_answer_advances_the_round_and_extreme_numbers_do_not_warn(tmp_path: Path) -> None:
    study = masked_study()
    start = study.method(ROWS["a"]).start(study.shape)
    with MaskedSite(tmp_path, "a", study).guard() as guard:
        agent = Agent(guard, study)
        assert (agent.last_round, len(agent.tags)) == (0, 8 * len(NAMES))
        request, everyone = agent.prepare(1, start), bitmap_of(range(len(NAMES)), len(NAMES))
        first = agent.mask(1, request, everyone)
        assert agent.last_round == 1
        absurd = replace(PublicState.unpacked(start, study.shape), clip=1e300, point=np.full(study.shape, 1e300))
        with pytest.raises(RefusalError):
            agent.prepare(2, absurd.packed())
        assert (agent.mask(1, request, everyone) == first).all()
        assert agent.last_round == 1
