"""All named methods: those of others, the paper's and ours.

Notation: e the error, e^ the imputed error, w = 1 / propensity the weight, O the log, D all pairs.
"""

from __future__ import annotations

from counterpoise import compositions
from counterpoise.baseline_methods import BASELINES
from counterpoise.citations import MARLIN, ORDINAL, PAPER, VOICES
from counterpoise.named_method import LOG, Method
from counterpoise.words import Select

RULES: dict[str, tuple[Select, str, str]] = {
    "rkb": ("random", "random kernels", "Kernels at random pairs: the plain version of the paper's idea."),
    "wkb": (
        "worst_case",
        "the worst function",
        "The weights whose worst bias over all functions of unit norm is least, solved exactly. As printed in the "
        "paper the norm makes the kernel cancel; here it is the norm over D plus a penalty in the kernel's own space.",
    ),
    "akb": (
        "adaptive",
        "the kernels that carry the error",
        "The paper's adaptive rule: the kernels with the largest coefficients in a regression of the current error.",
    ),
    "skb": (
        "spectral",
        "leading eigenfunctions of the kernel",
        "An orthonormal basis of the kernel over D, leading functions first: few functions, any smooth error. Our "
        "recommendation.",
    ),
}
WORST = "w = argmin KL(w || uniform) + gamma sup over unit f of (sum over O of w f - mean over D of f)^2"
BALANCE = "w = argmin KL(w || uniform) + gamma sum_j [|sum over O of w h_j - mean over D of h_j| - C]+"


def _kernel_methods() -> list[Method]:
    """RKB, WKB, AKB and SKB, each with IPS and with DR."""
    found = []
    for name, (select, functions, about) in RULES.items():
        for risk, build, formula in (
            ("ips", compositions.kernel_ips(select), "risk = sum over O of w e"),
            ("dr", compositions.kernel_dr(select), "risk = mean over D of e^ + sum over O of w (e - e^)"),
        ):
            weights = WORST if name == "wkb" else f"{BALANCE},   h_j: {functions}"
            title, text = f"{name.upper()}{risk.upper()}", f"{formula},   {weights}"
            needs = "the log alone; side features help"
            found.append(Method(f"{name}-{risk}", title, risk, build, text, about, needs, PAPER))
    return found


MOMENTS = "The moments of the features instead of kernels: the paper's Figure 1 compares with it."
BALANCING = (
    *_kernel_methods(),
    Method("mb-ips", "MBIPS", "ips", compositions.mb_ips,
           f"risk = sum over O of w e,   {BALANCE},   h_j: powers of the features",
           MOMENTS, LOG, PAPER),
    Method("mb-dr", "MBDR", "dr", compositions.mb_dr,
           f"risk = mean over D of e^ + sum over O of w (e - e^),   {BALANCE},   h_j: powers of the features",
           MOMENTS, LOG, PAPER),
)  # fmt: skip

OBSERVED = "risk = mean over O of CE(r -> sigmoid(s + c)),   c = contrast of the labels, log against all pairs"
SILENT = "(1/|O|) (sum over O of -log m + sum over D \\ O of -log(1 - m)),   m = P(observed | s)"
SILENCE = (
    Method(
        "mnar",
        "MNAR",
        "likelihood",
        compositions.mnar,
        f"{OBSERVED};   + {SILENT}",
        "The likelihood of the whole matrix, labels and silence alike: a pair that was not rated is likelier to be "
        "disliked, as far as the log's labels are better than the probe's. Right when selection depends on the label "
        "alone; where some items are seen more for other reasons, it takes that for taste.",
        "a probe (or a rate)",
        MARLIN,
    ),
    Method(
        "counterpoise",
        "Counterpoise",
        "likelihood",
        compositions.counterpoise,
        "s = (s1 + s2) / 2 + level,   s1, s2 = backbone + v_u a_u + v_i b_i + v_ui g_u'h_i;   "
        f"s1: {OBSERVED};   + {SILENT} of the backbone alone;   s2: the first risk alone, c = 0;   "
        "both: + mean over O of -log P(grade | r, s), proportional odds",
        "Silence as in MNAR, and beside it a model of exposure, whose say in the prediction is three numbers. Labels "
        "decide them, and so can take back what silence claims. A second predictor hears labels alone, and the mean of "
        "both predicts, at the level of the probe. Where ratings have more than two values, how far they are from the "
        "threshold counts too, as far as it is seen to go with taste. Side features are used where the log has any. "
        "Without a probe silence says nothing, and there is one predictor.",
        "the log alone; a probe helps",
        f"{MARLIN}; {VOICES}; {ORDINAL}",
    ),
)

METHODS: dict[str, Method] = {method.name: method for method in (*BASELINES, *BALANCING, *SILENCE)}
