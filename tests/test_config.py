"""The conventions of configurable parts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from sklearn.base import clone

import counterpoise as cp
from counterpoise import ConfigError, DebiasedRecommender, MatrixFactorization, NeuralCF, Training, Uniform
from counterpoise.config import Configurable, from_config
from counterpoise.imputation.base import Constant, Learned
from counterpoise.imputation.multiply_robust import MultiplyRobust
from counterpoise.imputation.targeted import Targeted
from counterpoise.imputation.tri_training import TriTraining
from counterpoise.weights.base import NaiveBayes, UnitWeights


def test_repr_is_the_configuration() -> None:
    model = cp.make("mf", dim=7, seed=3, patience=4)
    assert eval(repr(model), {name: getattr(cp, name) for name in cp.__all__}) == model


def test_clone_copies_the_settings_and_not_the_fit(fitted: DebiasedRecommender) -> None:
    copy = clone(fitted)
    assert copy == fitted
    assert copy.backbone is not fitted.backbone
    assert not hasattr(copy, "scorer_")


def test_settings_of_nested_parts_can_be_read_and_changed() -> None:
    model = DebiasedRecommender()
    assert model.get_params()["training__epochs"] == model.training.epochs
    model.set_params(training__epochs=3, backbone__dim=2)
    assert (model.training.epochs, model.backbone.dim) == (3, 2)
    assert "training__epochs" not in model.get_params(deep=False)


def test_parts_with_other_settings_are_not_equal() -> None:
    assert cp.make("mf", seed=1) != cp.make("mf", seed=2)


@pytest.mark.parametrize("name", ["depth", "training__depth", "risk__depth"])
def test_an_unknown_setting_is_named_with_those_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match=r"has no setting `(depth|risk__depth)`\. Its settings: "):
        DebiasedRecommender().set_params(**{name: 1})


@pytest.mark.parametrize(
    "part",
    [
        Uniform(),
        Training(seed=4),
        MatrixFactorization(dim=3),
        NeuralCF(hidden=(4, 2)),
        Targeted(Constant(0.2), "weight"),
        MultiplyRobust(
            (Uniform(), UnitWeights()), (Learned("mse", backbone=NeuralCF(hidden=(3,))), Targeted()), ridge=0.1
        ),
        MultiplyRobust(imputations=()),
        TriTraining(NaiveBayes(smoothing=2.0), threshold=0.3),
    ],
)
def test_a_part_comes_back_from_its_configuration(part: Configurable) -> None:
    assert from_config(part.to_config()) == part
    assert from_config(json.loads(json.dumps(part.to_config()))) == part


def test_a_part_comes_back_also_before_its_module_was_imported() -> None:
    program = (
        "from counterpoise.config import from_config; import sys;"
        "assert 'counterpoise.training.loop' not in sys.modules;"
        "print(from_config({'part': 'Training', 'seed': 4}).seed);"
        "print(*(from_config({'part': name}) for name in ('NeuralCF', 'KnownPropensity', 'Logistic')), sep='\\n')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["4", repr(NeuralCF()), repr(cp.KnownPropensity()), repr(cp.Logistic())]


def test_parts_in_a_tuple_are_cloned() -> None:
    part = MultiplyRobust((Uniform(),))
    copy = clone(part)
    assert copy == part
    assert copy.propensities[0] is not part.propensities[0]


def test_a_configuration_can_name_nothing_but_parts() -> None:
    for config in ({"part": "os.system"}, {"part": "Part"}, {"part": "simulate"}, {}, {"part": "Training", "code": 1}):
        with pytest.raises(ConfigError):
            from_config(config)


def test_make_takes_settings_by_their_own_names() -> None:
    model = cp.make("mf", backbone="ncf", hidden=[8], training__seed=5, l2=1.5)
    assert model.backbone == NeuralCF(hidden=(8,), l2=1.5)
    assert model.training.seed == 5


def test_make_names_what_is_wrong() -> None:
    with pytest.raises(
        ConfigError, match=f"`method` is none of {len(cp.METHODS)} known ones, got 'mfx'. Did you mean 'mf'"
    ):
        cp.make("mfx")
    with pytest.raises(ConfigError, match=r"setting `dimension` is unknown\..* Settings: .*dim"):
        cp.make("mf", dimension=3)
    with pytest.raises(ConfigError, match=r"setting `weights__strenght` is unknown\. Did you mean 'strength'\?"):
        cp.make("akb-dr", weights__strenght=1)
    with pytest.raises(
        ConfigError, match="`backbone` must be a Backbone or one of 'mf', 'ncf', 'popularity', got 'gru'"
    ):
        cp.make("mf", backbone="gru")


def test_methods_build_fresh_parts_at_each_call() -> None:
    assert cp.make("mf").training is not cp.make("mf").training


def test_backbone_names_the_model_inside_an_exposure_covariate() -> None:
    model = cp.make("counterpoise", backbone="ncf", hidden=[8])
    assert isinstance(model.backbone, cp.ExposureCovariate)
    assert isinstance(model.backbone.backbone, cp.NeuralCF)
    assert cp.make("counterpoise", backbone={"dim": 3}).backbone.backbone.dim == 3
