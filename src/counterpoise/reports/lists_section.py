"""The section on recommendations: what people would be shown, before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterpoise.reports.blocks import Column, Figure, Section, Table, Text

Facts = Mapping[str, Any]


def lists_section(facts: Facts) -> Section:
    """What people would be shown."""
    lists = facts["lists"]
    blocks: list[Text | Table | Figure] = [_list_figures(lists)]
    if "before" not in lists:
        blocks.append(Text("There is no plain MF to compare with, so these are the lists of this run alone."))
    else:
        blocks.append(
            Text("Some users, from the least to the most active; • marks what plain MF would not have shown.")
        )
    for user in lists["users"]:
        if user["after"]:
            blocks.append(_user_table(user, "before" in lists))
    return Section("lists", "Recommendations", blocks)


def _list_figures(lists: Facts) -> Table:
    columns = [Column("lists"), Column("items shown", "count", "items shown")]
    columns += [
        Column("popularity rank", "metric", "popularity rank"),
        Column("from the top tenth", "share", "top tenth"),
    ]
    columns += [Column("overlap", "share", "overlap")]
    keys = ("items_shown", "popularity_rank", "top_tenth")
    names = {"before": "before: plain MF", "after": "after: this run"}
    rows = [
        [words, *(lists[which][key] for key in keys), lists["overlap"] if which == "after" else None]
        for which, words in names.items()
        if which in lists
    ]
    return Table(f"Lists of {lists['k']} for {lists['sampled_users']:,} users", columns, rows)


def _user_table(user: Facts, compared: bool) -> Table:
    """One user's lists side by side."""
    columns = [Column("rank", "count")]
    sides = ["before", "after"] if compared else ["after"]
    for side in sides:
        columns += [Column(side), Column("score", "chance", "score"), Column("ratings", "count", "popularity")]
    rows = []
    for place in range(max(len(user[side]) for side in sides)):
        row: list[Any] = [place + 1]
        for side in sides:
            entry = user[side][place] if place < len(user[side]) else None
            new = " •" if entry and entry.get("new") else ""
            row += [f"{entry['item']}{new}", entry["score"], entry["ratings"]] if entry else [None, None, None]
        rows.append(row)
    count = f"{user['ratings']:,} rating{'' if user['ratings'] == 1 else 's'}"
    return Table(f"User {user['user']}, {count}", columns, rows, half=True, sortable=False)
