"""The named methods as compositions of parts: each a few lines that build fresh parts at each call."""

from __future__ import annotations

from collections.abc import Callable

from counterpoise.agreement import Agreement
from counterpoise.backbones import MatrixFactorization
from counterpoise.balancing import Balancing
from counterpoise.calibrated import Multiple, Targeted
from counterpoise.exposure import Exposed
from counterpoise.functions import KernelFunctions, Moments
from counterpoise.imputation import Constant, Learned
from counterpoise.joint_propensity import BalancedPropensity, StabilizedPropensity
from counterpoise.logistic import Logistic
from counterpoise.propensity import Popularity
from counterpoise.recommender import DebiasedRecommender
from counterpoise.silence import Silence
from counterpoise.weights import Itself, NaiveBayes, Uniform
from counterpoise.words import Select, Weighting


def mf() -> DebiasedRecommender:
    """Every observed pair counts the same."""
    return DebiasedRecommender(Uniform(), "ips")


def ips() -> DebiasedRecommender:
    """Weights by naive Bayes."""
    return DebiasedRecommender(NaiveBayes(), "ips")


def snips() -> DebiasedRecommender:
    """The same, over the sum of the weights."""
    return DebiasedRecommender(NaiveBayes(), "snips")


def asips() -> DebiasedRecommender:
    """A third model learns what two others agree on."""
    return DebiasedRecommender(Uniform(), "direct", Agreement(NaiveBayes()))


def ips_v2() -> DebiasedRecommender:
    """A propensity model that is trained beside the predictor, with a term for balance."""
    return DebiasedRecommender(BalancedPropensity(), "ips")


def eib() -> DebiasedRecommender:
    """Observed pairs stand for themselves, a constant label for all others."""
    return DebiasedRecommender(Itself(), "dr", Constant())


def steady() -> MatrixFactorization:
    """A stronger prior, for risks whose corrected labels leave [0, 1] by far: without it they have no lower bound."""
    return MatrixFactorization(l2=16.0, l2_biases=8.0)


def dr() -> DebiasedRecommender:
    """A constant imputed label."""
    return DebiasedRecommender(NaiveBayes(), "dr", Constant(), steady())


def joint(weighting: Weighting) -> Callable[[], DebiasedRecommender]:
    """A learned imputation, trained on the residuals weighted in one of four ways."""
    return lambda: DebiasedRecommender(NaiveBayes(), "dr", Learned(weighting))


def mr() -> DebiasedRecommender:
    """Two propensity models and two imputation models: one right one is enough."""
    candidates = Multiple((Logistic(), Popularity()), (Learned(), Learned("variance")), ridge=1.0)
    return DebiasedRecommender(Uniform(), "direct", candidates, steady())


def tdr() -> DebiasedRecommender:
    """A constant imputed label, targeted."""
    return DebiasedRecommender(Logistic(), "dr", Targeted(Constant()), steady())


def tdr_jl() -> DebiasedRecommender:
    """A learned imputation, targeted."""
    return DebiasedRecommender(Logistic(), "dr", Targeted(Learned()), steady())


def sdr() -> DebiasedRecommender:
    """Propensities that balance the imputed error, in the self-normalised estimator."""
    return DebiasedRecommender(StabilizedPropensity(), "snips", Learned())


def dr_v2() -> DebiasedRecommender:
    """The propensities of IPS-V2 in the doubly robust estimator."""
    return DebiasedRecommender(BalancedPropensity(), "dr", Learned())


def kernel_ips(select: Select) -> Callable[[], DebiasedRecommender]:
    """KBIPS: weights that balance kernel functions, chosen by one of the rules."""
    return lambda: DebiasedRecommender(Balancing(KernelFunctions(select=select)), "ips")


def kernel_dr(select: Select) -> Callable[[], DebiasedRecommender]:
    """KBDR: the same weights with a learned imputation."""
    return lambda: DebiasedRecommender(Balancing(KernelFunctions(select=select)), "dr", Learned())


def mb_ips() -> DebiasedRecommender:
    """Weights that balance moments."""
    return DebiasedRecommender(Balancing(Moments(2)), "ips")


def mb_dr() -> DebiasedRecommender:
    """The same weights with a learned imputation."""
    return DebiasedRecommender(Balancing(Moments(2)), "dr", Learned())


def mnar() -> DebiasedRecommender:
    """The likelihood of labels and silence, where the label alone decides what is observed."""
    return DebiasedRecommender(Uniform(), "ips", Silence())


def counterpoise() -> DebiasedRecommender:
    """The same, where exposure has a learned say in the prediction, halfway to what labels and grades alone say."""
    backbone = Exposed(MatrixFactorization(side_features="auto"))
    return DebiasedRecommender(Uniform(), "ips", Silence(), backbone, hedge=True, grades=True)
