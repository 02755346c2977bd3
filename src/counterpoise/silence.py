"""prototype"""
from __future__ import annotations
from dataclasses import dataclass, field
from typing import Any
import numpy as np, torch
from torch import Tensor
from counterpoise.imputation import Imputation, Imputing, Nothing
from counterpoise.problems import Problem
from counterpoise.propensity import surprise_of_nothing
from counterpoise.training import Batch
from counterpoise.weights import Weighing

@dataclass
class Silence(Imputation):
    base: Imputation = field(default_factory=Nothing)
    exposure: str = "even"
    strength: float = 1.0
    rate: float | None = None

    def begin(self, problem, weighing):
        return _Silence(self, problem, self.base.begin(problem, weighing))

def shrunk(codes, n):
    c = np.bincount(codes, minlength=n); E = c.mean(); v = c.var()
    excess = max(v - E, 0) / E**2          # variance of the relative rate
    a = 1/excess if excess > 1e-9 else 1e9
    return (c + a) / (E + a)  # gamma-poisson posterior mean: (a + c)/(a/1... )

class _Silence(Imputing):
    needs_pairs = True
    def __init__(self, part, problem, base):
        self.part, self.base = part, base
        log = problem.log; self.density = log.density
        one = [np.ones(n) for n in log.shape]
        if part.exposure in ("main",):
            one = [shrunk(c, n) for c, n in ((log.users, log.shape[0]), (log.items, log.shape[1]))]
        if part.exposure == "half":
            one = [shrunk(c, n)**.5 for c, n in ((log.users, log.shape[0]), (log.items, log.shape[1]))]
            one = [o/o.mean() for o in one]
        s, t = one
        probe = problem.probe; b = float(log.labels.mean())
        st = s[probe.users]*t[probe.items]
        pos = (float((st*probe.labels).sum())+1*st.mean())/(len(probe)+2); neg = (float((st*(1-probe.labels)).sum())+st.mean())/(len(probe)+2)
        self.k1, self.k0 = log.density*b/pos, log.density*(1-b)/neg
        if part.rate is not None:
            self.k1,self.k0=log.density*b/part.rate, log.density*(1-b)/(1-part.rate)
        self.s, self.t = torch.tensor(s).float(), torch.tensor(t).float()
        self.all = self.share((self.s[:, None]*self.t).flatten())
        self.rows = self.share(self.s[log.users.astype(int)]*self.t[log.items.astype(int)])
    def share(self, e):
        p1, p0 = (self.k1*e).clamp(max=.95), (self.k0*e).clamp(max=.95)
        return (p1-p0)/(1-p0)
    def step(self, *a, **k): self.base.step(*a, **k)
    def errors(self, *a): return self.base.errors(*a)
    def state(self): return self.base.state()
    def extra_loss(self, batch, logits, pair_logits):
        share = self.all if batch.pair_users is None else self.share(self.s[batch.pair_users.long()]*self.t[batch.pair_items.long()])
        return self.part.strength*(surprise_of_nothing(pair_logits, share)/self.density - surprise_of_nothing(logits, self.rows[batch.rows]))
    def facts(self): return {"p1": self.k1, "p0": self.k0}
