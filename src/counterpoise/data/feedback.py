"""The kinds of feedback in words: the terms for clicks and impressions in the place of "rating"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from counterpoise.config import Feedback

RATING_WORDS = re.compile(r"\b([Rr])at(ings?|ed)\b")
LEVEL_OF_CLICKS = (
    "Clicks do not tell how many pairs are relevant: compare methods by AUC and lists, not by MSE, MAE and log loss."
)


@dataclass(frozen=True)
class Words:
    """The words for the rows of one kind of feedback."""

    row: str  # one row of the log
    done: str  # what happened to the pair of a row
    positive: str  # what a row with label 1 has, in a test too
    baseline: str  # the model without correction that others are compared with
    tested: str  # rows of a test with labels of both kinds
    beside: str  # what a baseline run is, on the served page
    selected: str  # how the pairs of a biased test came about
    score: str  # what a prediction is
    log: str  # what the log has, and what it lacks
    unknown_pairs: str  # what is known of pairs without a row

    def __call__(self, text: str) -> str:
        """A text that was written of ratings, said of these rows; not for text from users' data."""
        words = {"ing": self.row, "ings": f"{self.row}s", "ed": self.done}
        text = text.replace("MF baseline", self.baseline).replace("positive label", self.positive)

        def word(found: re.Match[str]) -> str:
            own = words[found[2]]
            return own.capitalize() if found[1] == "R" else own

        return RATING_WORDS.sub(word, text)

    def count(self, number: int) -> str:
        """So many rows: "1 click", "12,345 clicks"."""
        return f"{number:,} {self.row}{'' if number == 1 else 's'}"


WORDS: dict[Feedback, Words] = {
    "ratings": Words(
        "rating",
        "rated",
        "positive label",
        "MF baseline",
        "ratings",
        "Matrix factorisation that takes the log as it is.",
        "that users chose",
        "probability of a positive rating",
        "labels of both kinds",
        "No probe (a small sample of pairs drawn at random): whether people rate what they like is not known.",
    ),
    "clicks": Words(
        "click",
        "clicked",
        "relevant item",
        "baseline",
        "labels of relevance",
        "A model that takes the clicks as they are.",
        "that users chose",
        "probability of relevance, as this method models it",
        "no ratings: positives alone",
        "These are clicks alone: a pair without one was not relevant or not seen, and nothing tells which.",
    ),
    "impressions": Words(
        "impression",
        "shown",
        "click",
        "MF baseline",
        "impressions",
        "Matrix factorisation that takes the log as it is.",
        "that were shown",
        "probability of a click on what is shown",
        "what was shown, clicked or not",
        "No probe (a small sample of pairs drawn at random): whether liked items are shown more is not known.",
    ),
}


def words_of(feedback: str | None) -> Words:
    """The words of a kind; those of ratings where an older fact does not name it."""
    return next((words for kind, words in WORDS.items() if kind == feedback), WORDS["ratings"])
