# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # From a table to a private model
#
# Five hospitals want to predict which patients will be readmitted within a month. They cannot share their data.
# In this tutorial they train one model together. Someone who sees all of their messages can learn very little
# about any single patient. You set the limit in advance: it is called ε.
#
# Run it with `python examples/tutorial.py`. As a notebook: `pip install jupytext notebook`, then
# `jupytext --to ipynb examples/tutorial.py`; or open this file in VS Code or PyCharm, which support the `# %%`
# marks. You need `pip install 'dpadmm[sklearn]'`. It takes half a minute and needs no network.

# %%
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from dpadmm import BudgetAccountant, BudgetExceededError, DPADMMClassifier, load_model

kept = tempfile.TemporaryDirectory(prefix="dpadmm-tutorial-")  # removed on exit
folder = Path(kept.name)
command = shutil.which("dpadmm", path=str(Path(sys.executable).parent)) or "dpadmm"


def dpadmm(*words: str, fails: bool = False) -> str:
    """Run the command as you would type it, in the tutorial's folder, and show its output."""
    done = subprocess.run(
        [command, *words], cwd=folder, capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"}
    )
    print("$ dpadmm", *words)
    if "--json" not in words:
        print(done.stdout + done.stderr)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stdout


# %% [markdown]
# ## The tables
#
# The tables are synthetic: 20 columns of mixed kinds, with one cell in twenty missing.
#
# * `patients.csv`: 30,000 rows of the five hospitals. **Private.** Only `train` reads it.
# * `sample.csv`: 1,500 rows, such as those of an older survey that anyone may download. **Public.**
# * `later.csv`: the patients of the next month, to predict and to measure the accuracy.

# %%
VALUES = {
    "region": ["north", "east", "south", "west"],
    "insurance": ["public", "private", "none"],
    "diet": ["mixed", "vegetarian", "vegan"],
    "work": ["employed", "student", "retired", "at home", "seeking"],
    "referral": ["doctor", "emergency", "self"],
    "pain": ["none", "mild", "severe"],
    "activity": ["low", "middle", "high"],
}
FLAGS = ["smoker", "diabetic", "allergy", "stayed_before", "lives_alone"]
NUMBERS = {  # mean and spread
    "age": (55, 17), "bmi": (27, 5), "pulse": (75, 11), "systolic": (130, 17),
    "glucose": (100, 20), "temperature": (36.9, 0.5), "visits": (4, 2), "distance": (20, 8),
}  # fmt: skip
PULL = {  # effects on the label; all other columns have none
    "age": 0.9, "glucose": 0.6, "visits": 0.7, "bmi": 0.3,
    "pain": 0.6, "activity": -0.5, "smoker": 0.8, "stayed_before": 1.0, "lives_alone": 0.5,
}  # fmt: skip


def make_rows(n: int, seed: int) -> pa.Table:
    """Patients, with missing cells, a case number, a hospital and the label."""
    rng = np.random.default_rng(seed)
    cells: dict[str, Any] = {}
    score = np.zeros(n)
    for name, (mean, spread) in NUMBERS.items():
        z = rng.normal(size=n)
        cells[name] = (mean + spread * z).clip(0).round(1)
        score += PULL.get(name, 0.0) * z
    for name, values in VALUES.items():
        place = rng.integers(len(values), size=n)
        cells[name] = np.array(values)[place]
        score += PULL.get(name, 0.0) * (place - (len(values) - 1) / 2)
    for name in FLAGS:
        truth = rng.random(n) < 0.4
        cells[name] = np.where(truth, "yes", "no")
        score += PULL.get(name, 0.0) * (truth - 0.4)
    columns = {name: pa.array(cell, mask=rng.random(n) < 0.05) for name, cell in cells.items()}
    back = rng.random(n) < 1 / (1 + np.exp(0.7 - 1.5 * score))
    return pa.table(
        {
            "case": [f"c{j:06d}" for j in range(n)],
            "hospital": rng.choice(list("ABCDE"), n),
            **columns,
            "back": np.where(back, "yes", "no"),
        }
    )


TABLES = {
    "patients": make_rows(30_000, seed=1),
    "sample": make_rows(1_500, seed=4),
    "later": make_rows(8_000, seed=9),
}
for name, rows in TABLES.items():
    pa.csv.write_csv(rows, folder / f"{name}.csv")
features = [name for name in TABLES["sample"].column_names if name not in ("case", "hospital", "back")]
missing = sum(TABLES["patients"][name].null_count for name in features) / (30_000 * len(features))
assert len(features) == 20
assert 0.045 < missing < 0.055
print(f"{len(features)} columns, {missing:.1%} of the cells are missing")

# %% [markdown]
# ## 1. A study
#
# A model needs numbers, and rows of limited norm: the noise hides one row only if no row can be arbitrarily
# large. It is common to scale by the smallest and the largest value of each column. But then the oldest patient
# determines the scale for everyone. That reveals the patient's age, and no ε accounts for it.
#
# So the encoding is declared in advance, from public knowledge, in a *study*. `study new` drafts one from the
# public sample.

# %%
dpadmm("study", "new", "study.toml", "--from", "sample.csv", "--label", "back", "--by", "hospital")
draft = (folder / "study.toml").read_text()
print(draft[: draft.index("[columns.pulse]")])

# %% [markdown]
# The draft leaves out `case`, which identifies rows. Values inferred from the table are marked `public = false`
# and are rejected until you confirm them. For each value ask: *could I have written this down without seeing any
# patient?* If the table is public, yes. If you drafted from your own rows, no: replace the value by one from the
# questionnaire, a textbook, or common sense.
#
# The last mark is for the rows of the sample, `[public_rows]`, from which training starts. No ε covers them.
# Confirm them only if anyone may see them all, as here; otherwise delete that table from the study.

# %%
assert draft.count("public = false") == 17  # the label, 8 numbers, 7 lists of values, the rows; flags need none
dpadmm("study", "check", "study.toml", fails=True)


# %% [markdown]
# Normally you would use an editor. We make two corrections, and then confirm.
#
# * Bounds from a textbook replace those of the 1,500 people in the sample.
# * `pain` and `activity` are ordered, so their kind is `ordinal`. A draft cannot infer that.


# %%
def corrected(text: str, column: str, *lines: str) -> str:
    """The study with other lines for one column."""
    section = "\n".join([f"[columns.{column}]", *lines, "public = false", "", ""])
    return re.sub(rf"\[columns\.{column}\]\n(.+\n)+\n", section, text)


study = draft
for column, low, high in (("age", 0, 110), ("bmi", 10, 50), ("glucose", 40, 180), ("visits", 0, 10)):
    study = re.sub(rf"(?s)(\[columns\.{column}\].*?)bounds = [^\n]+", rf"\1bounds = [{low}, {high}]", study, count=1)
for column in ("pain", "activity"):
    study = corrected(study, column, 'kind = "ordinal"', f"values = {json.dumps(VALUES[column])}")
(folder / "study.toml").write_text(study)
dpadmm(
    "study", "confirm", "study.toml", "--all"
)  # safe here: the tables are synthetic. Review before you confirm your own
dpadmm("study", "check", "study.toml")

# %% [markdown]
# ## 2. Forecast the accuracy
#
# Training spends privacy budget permanently, so forecast the result first. `plan` runs the whole study on the
# public sample, with the noise for the planned numbers of rows. It reads no private row. It also shows
# whether another number of rounds, or another ε, would be better.
#
# The recommendation at the end compares the study with a model of the sample alone, which spends no budget.
# These tables have the same distribution, so private rows improve little on 1,500 public ones: compare both
# columns of the first table before you decide.

# %%
sizes = ("--agents", "5", "--rows", "6000")
dpadmm("plan", "study.toml", *sizes, "--rounds", "50", "-o", "plan")
plan = json.loads((folder / "plan" / "forecast.json").read_text())
forecast = plan["scenarios"][0]["own"]["accuracy"]
assert plan["private_rows_read"] == 0
assert plan["scenarios"][0]["own"]["auc"]["mean"] > 0.8  # the basis of the recommendation
print(f"forecast: {forecast['mean']:.1%} ± {forecast['spread']:.1%}")

# %% [markdown]
# ## 3. Train
#
# Every hospital is an agent. In every round, each agent computes the mean gradient of its own rows, adds noise,
# and sends the result; it sends nothing else. Here all agents run in this process, with the same noise as
# deployed sites. The noise comes from the operating system, so no two runs are equal.

# %%
dpadmm("train", "study.toml", "--data", "patients.csv", "--by", "hospital", "-o", "model.dpadmm")
model = load_model(folder / "model.dpadmm")
assert model.privacy["epsilon"] <= 1.0

# %% [markdown]
# `model.privacy.json` is the privacy report. Anyone can check it: `dpadmm verify` recomputes ε.
#
# ## 4. Evaluate
#
# `evaluate` adds no noise, so its metrics may reveal individual rows: use it on public rows or your own.

# %%
dpadmm("evaluate", "model.dpadmm", "--data", "later.csv")
truth = TABLES["later"]["back"].to_numpy()
predicted = model.predict(TABLES["later"])
reached, guess = np.mean(predicted == truth), np.mean(truth == "no")
print(f"forecast {forecast['mean']:.1%}, reached {reached:.1%}, majority class {guess:.1%}")
assert abs(forecast["mean"] - reached) < 0.03
assert reached > guess + 0.1

# %% [markdown]
# ## 5. Predict
#
# The input is a file, or in Python a pandas or polars data frame, an Arrow table or a dict. Missing cells are
# allowed: the study defines how they are encoded.

# %%
dpadmm("predict", "model.dpadmm", "--data", "later.csv", "--keep", "case", "-o", "answers.csv")
answers = pa.csv.read_csv(folder / "answers.csv")
assert answers["prediction"].to_pylist() == predicted.tolist()
print(answers.slice(0, 3).to_pylist())

# %% [markdown]
# ## 6. Explain
#
# Coefficients are in the units of your columns: the change of the score for one more year of age, or one more
# step of pain. There are no intervals: they need a separate release, which this study does not have. Noise changes
# every weight, including those of columns without effect, so do not interpret small coefficients.

# %%
explained = json.loads(dpadmm("explain", "model.dpadmm", "--json"))
for each in explained["coefficients"][:12]:
    name = f"{each['column']}={each['value']}" if each["value"] else each["column"]
    print(f"{name:<20}{each['coefficient']:>8.3f} {each['per']:<10}{each['effect_over_range']:>8.2f} over its range")
largest = list(dict.fromkeys(each["column"] for each in explained["coefficients"]))
assert {"age", "glucose", "visits", "stayed_before", "smoker"} <= set(largest[:12])
print("largest effects:", ", ".join(largest[:5]))

# %% [markdown]
# ## The same with scikit-learn
#
# `DPADMMClassifier` takes a matrix of numbers. The rule is the same: the encoding must depend on public
# knowledge only. An imputer or a scaler that is *fitted* on private rows leaks, and no ε accounts for it. So a
# missing number becomes the middle of its public bounds, and each public value of a category becomes a column
# of 0 and 1.

# %%
BOUNDS = {
    "age": (0, 110), "bmi": (10, 50), "pulse": (30, 120), "systolic": (60, 200),
    "glucose": (40, 180), "temperature": (34, 40), "visits": (0, 10), "distance": (0, 50),
}  # fmt: skip


def to_matrix(rows: pa.Table) -> Any:
    """Numbers as they are, 0 and 1 for every public value; nothing is fitted on the rows."""
    columns = [rows[name].fill_null(sum(pair) / 2).to_numpy() for name, pair in BOUNDS.items()]
    for name, values in {**VALUES, **{flag: ["yes"] for flag in FLAGS}}.items():
        cells = rows[name].to_numpy()
        columns += [np.asarray(cells == value, dtype=float) for value in values]
    return np.column_stack(columns)


X, y = to_matrix(TABLES["patients"]), TABLES["patients"]["back"].to_numpy()
hospital = TABLES["patients"]["hospital"].to_numpy()
ones = [1.0] * (X.shape[1] - len(BOUNDS))
low = [pair[0] for pair in BOUNDS.values()] + [0.0] * len(ones)
high = [pair[1] for pair in BOUNDS.values()] + ones

# %% [markdown]
# A `BudgetAccountant` composes the privacy loss of all fits on these rows, and rejects a fit that would exceed
# the total before it starts. By composition, two fits with ε = 1 cost less than ε = 2, but more than the 1.2
# allowed here. So the second fit is rejected.

# %%
private = DPADMMClassifier(
    epsilon=1.0,
    delta=1e-6,
    bounds=(low, high),
    classes=["no", "yes"],
)
with warnings.catch_warnings(), BudgetAccountant(epsilon=1.2, delta=1e-5):
    warnings.simplefilter("error")  # a leak would be a PrivacyLeakWarning: there is none
    private.fit(X, y, groups=hospital)
    try:
        private.fit(X, y, groups=hospital)
    except BudgetExceededError as refusal:
        print("refused:", refusal)
    else:
        raise AssertionError("the second fit exceeds the budget")

score = private.score(to_matrix(TABLES["later"]), truth)
print(f"accuracy {score:.1%} at ε = {private.privacy_['epsilon']:.4f}; noise: {private.privacy_['noise']}")
assert private.privacy_["epsilon"] <= 1.0
assert score > guess + 0.1

# %% [markdown]
# ## What to remember
#
# * Bounds, values and classes come from public knowledge. You declare them in the study and confirm them.
# * Run `plan` before you spend budget. The privacy loss of all releases from the same rows accumulates.
# * Coefficients are noisy. Without a release for intervals, do not interpret the small ones.
