"""When to stop iterating and factorise."""

from dataclasses import dataclass


@dataclass
class Patience:
    """How much work conjugate gradients may do on a system before it is factorised.

    How many iterations a system takes is not known beforehand. Iterating until that has cost as
    much as a factorisation, and factorising then, costs at most twice the better choice, whichever
    that is (the ski rental problem; Karlin, Manasse, Rudolph & Sleator 1988).

    Attributes
    ----------
    share
        The work that is allowed, in factorisations.
    spent
        The work done.
    """

    share: float = 1.0
    spent: float = 0.0

    @property
    def exhausted(self) -> bool:
        """Whether the work that is allowed has been done."""
        return self.spent >= self.share

    def iterations(self, worth: float) -> float:
        """Return the iterations left, `worth` of which take the time of a factorisation."""
        return (self.share - self.spent) * worth + 1 if not self.exhausted else float("inf")
