"""A recommender from the folder that `save` wrote: every part is looked at before it is believed."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import torch

from counterpoise.backbones import as_backbone
from counterpoise.errors import DataError
from counterpoise.hedging import Hedged
from counterpoise.parts import from_config
from counterpoise.persistence import read_folder
from counterpoise.recommender import DebiasedRecommender
from counterpoise.saved_parts import check_facts, check_history, check_log_facts, check_numbers, check_seen
from counterpoise.training import Training
from counterpoise.vocabulary import Vocabulary


def load_model(folder: str | Path, device: str = "cpu") -> DebiasedRecommender:
    """The recommender that `save` wrote. Nothing in the folder is executed."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    place = Training(device=device).resolve_device()
    manifest, files = read_folder(folder)
    try:
        model = from_config(manifest["configuration"])
        if not isinstance(model, DebiasedRecommender):
            raise DataError(f"{folder} holds a {type(model).__name__}, not a recommender.")
        tensors = load(files["tensors.safetensors"])
        model.user_ids_ = Vocabulary.from_parquet(files["users.parquet"])
        model.item_ids_ = Vocabulary.from_parquet(files["items.parquet"])
        model.check_settings()
        model.log_facts_, model.history_ = check_log_facts(manifest["log"]), check_history(manifest["history"])
        shape, n_columns = (len(model.user_ids_), len(model.item_ids_)), tuple(model.log_facts_["feature_columns"])
        with torch.device("meta"):  # no memory until the saved tensors are seen to have the right shapes
            scorer = as_backbone(model.backbone).empty(*shape, n_columns=n_columns)
            if any(name.startswith("scorer.believing.") for name in tensors):
                if not model.hedge:
                    raise DataError(f"{folder} holds two predictors, and its configuration tells of one.")
                scorer = Hedged(scorer, deepcopy(scorer))
        state = {name.removeprefix("scorer."): t for name, t in tensors.items() if name.startswith("scorer.")}
        scorer.load_state_dict(state, assign=True)
        model.scorer_ = scorer.requires_grad_(False).to(place)
        for name, values in state.items():
            check_numbers(name, values)
        model.item_rates_ = check_numbers("item_rates", tensors["item_rates"], shape[1:]).to(place)
        model.ratio_ = check_numbers("ratio", tensors["ratio"], (len(tensors["ratio"]),)).numpy()
        model.facts_ = check_facts(manifest["parts"])
        model.seen_ = check_seen("seen", tensors["seen.starts"], tensors["seen.items"], shape)
        model.probed_ = check_seen("probed", tensors["probed.starts"], tensors["probed.items"], shape)
        model.configuration_ = manifest["configuration"]
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{folder} cannot be loaded, its parts do not fit together: {reason}") from error
    return model
