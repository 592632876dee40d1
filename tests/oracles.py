"""Dense float64 references that share no code with the library.

Everything here is in parameter space: a model is ``f = offset + J theta`` with a Jacobian ``J`` of
shape (n, d, q), and its kernel is ``K = J J^T``. The library never forms ``theta``, so agreement
between the two is evidence and not repetition.
"""

from dataclasses import dataclass, replace
from decimal import Decimal, localcontext

import numpy as np
from scipy.special import expit, logsumexp, softmax

# --- losses: per-point value (n,), gradient (n, d), Hessian (n, d, d) --------------------------


def squared_value(outputs, targets):
    return 0.5 * np.sum((outputs - targets) ** 2, axis=1)


def squared_gradient(outputs, targets):
    return outputs - targets


def squared_hessian(outputs, targets):
    return np.tile(np.eye(outputs.shape[1]), (len(outputs), 1, 1))


def cross_entropy_value(outputs, targets):
    return logsumexp(outputs, axis=1) - np.sum(targets * outputs, axis=1)


def cross_entropy_gradient(outputs, targets):
    return softmax(outputs, axis=1) - targets


def cross_entropy_hessian(outputs, targets):
    p = softmax(outputs, axis=1)
    return np.stack([np.diag(row) - np.outer(row, row) for row in p])


def logistic_value(outputs, targets):
    return np.logaddexp(0.0, -targets * outputs)[:, 0]


def logistic_gradient(outputs, targets):
    return -targets * expit(-targets * outputs)


def logistic_hessian(outputs, targets):
    return (expit(outputs) * expit(-outputs))[:, :, None]


VALUE = {
    "squared": squared_value,
    "cross_entropy": cross_entropy_value,
    "logistic": logistic_value,
}
GRADIENT = {
    "squared": squared_gradient,
    "cross_entropy": cross_entropy_gradient,
    "logistic": logistic_gradient,
}
HESSIAN = {
    "squared": squared_hessian,
    "cross_entropy": cross_entropy_hessian,
    "logistic": logistic_hessian,
}


# --- features ----------------------------------------------------------------------------------


def jacobian_of_features(features, d):
    """(n, p) features of one output, shared by d outputs: (n, d, p d), so that K = Sigma (x) I."""
    n, p = features.shape
    return np.einsum("np,ce->ncpe", features, np.eye(d)).reshape(n, d, p * d)


def features_of(matrix):
    """Features of a symmetric positive semidefinite matrix: ``features @ features.T == matrix``."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(np.clip(values, 0.0, None))


def kernel_blocks(first, second):
    """(n1, d, n2, d) kernel of two Jacobians."""
    return np.einsum("icq,jeq->icje", first, second)


# --- the model in parameter space --------------------------------------------------------------


@dataclass(frozen=True)
class Primal:
    """sum_i v_i loss_i + rho/2 ||theta||^2 with rho = reg sum(v) ("mean") or reg ("sum")."""

    jacobian: np.ndarray
    targets: np.ndarray
    loss: str
    reg: float
    reg_scale: str = "mean"
    offset: np.ndarray | None = None

    @property
    def n(self):
        return len(self.jacobian)

    def ones(self):
        return np.ones(self.n)

    def keeping(self, kept):
        """The same problem on some of its points, with nothing left of the others."""
        offset = None if self.offset is None else self.offset[kept]
        return replace(
            self, jacobian=self.jacobian[kept], targets=self.targets[kept], offset=offset
        )

    def ridge(self, weights):
        return self.reg * (weights.sum() if self.reg_scale == "mean" else 1.0)

    def outputs(self, theta):
        return (0.0 if self.offset is None else self.offset) + self.jacobian @ theta

    def theta(self, alpha):
        return np.einsum("ncq,nc->q", self.jacobian, alpha)

    def risk(self, theta, weights):
        losses = VALUE[self.loss](self.outputs(theta), self.targets)
        return weights @ losses + 0.5 * self.ridge(weights) * theta @ theta

    def gradient(self, theta, weights):
        g = GRADIENT[self.loss](self.outputs(theta), self.targets)
        return self.theta(weights[:, None] * g) + self.ridge(weights) * theta

    def hessian(self, theta, weights):
        w = HESSIAN[self.loss](self.outputs(theta), self.targets)
        J = self.jacobian
        fisher = np.einsum("icq,i,ice,ier->qr", J, weights, w, J, optimize=True)
        return fisher + self.ridge(weights) * np.eye(J.shape[2])

    def scale(self, weights):
        """What makes this sum the risk: under "mean" its losses are averaged."""
        return 1.0 / weights.sum() if self.reg_scale == "mean" else 1.0

    def gradient_norm(self, theta, weights=None):
        """Norm of the gradient of the risk: of the mean losses ("mean") or of their sum ("sum")."""
        weights = self.ones() if weights is None else weights
        return np.linalg.norm(self.gradient(theta, weights)) * self.scale(weights)

    def train(self, weights=None):
        """Optimal theta by damped Newton steps on the risk itself."""
        weights = self.ones() if weights is None else weights
        theta = np.zeros(self.jacobian.shape[2])
        best = np.linalg.norm(self.gradient(theta, weights))
        for _ in range(200):
            step = self.newton_step(theta, weights)
            theta_next = theta + self._step_length(theta, step, weights) * step
            norm = np.linalg.norm(self.gradient(theta_next, weights))
            if best <= 1e-10 and norm >= 0.5 * best:  # rounding decides from here on
                break
            theta, best = theta_next, norm
        assert best <= 1e-10, f"the oracle did not converge: gradient norm {best:.1e}"
        return theta

    def newton_step(self, theta, weights=None):
        weights = self.ones() if weights is None else weights
        return -np.linalg.solve(self.hessian(theta, weights), self.gradient(theta, weights))

    def _step_length(self, theta, step, weights):
        risk = self.risk(theta, weights)
        slope = self.gradient(theta, weights) @ step
        rounding = 1e-13 * (1.0 + abs(risk))
        length = 1.0
        while self.risk(theta + length * step, weights) > risk + 1e-4 * length * slope + rounding:
            length /= 2
        return length

    def removal_weights(self, forget):
        weights = self.ones()
        weights[np.asarray(forget)] = 0.0
        return weights

    def first_order_removal(self, theta, forget):
        """Derivative of the optimal theta as the weights of the forget set leave 1 for 0."""
        g = GRADIENT[self.loss](self.outputs(theta), self.targets)
        pull = self.theta((1.0 - self.removal_weights(forget))[:, None] * g)
        if self.reg_scale == "mean":
            pull = pull + len(forget) * self.reg * theta
        return np.linalg.solve(self.hessian(theta, self.ones()), pull)


def weight_derivative(primal, direction, value, step=1e-3):
    """Derivative of ``value(theta(v))`` at v = 1, by central differences of retrainings."""

    def central(h):
        ahead = value(primal.train(1.0 + h * direction))
        behind = value(primal.train(1.0 - h * direction))
        return (ahead - behind) / (2 * h)

    return (4 * central(step / 2) - central(step)) / 3  # Richardson: the error is O(step^4)


def descend(primal, step_size, steps, momentum=0.0):
    """Gradient descent on the risk from theta = 0, with heavy-ball momentum."""
    weights = primal.ones()
    theta = np.zeros(primal.jacobian.shape[2])
    velocity = np.zeros_like(theta)
    for _ in range(steps):
        gradient = primal.gradient(theta, weights) * primal.scale(weights)
        velocity = momentum * velocity - step_size * gradient
        theta = theta + velocity
    return theta


# --- the same problem in dual form, every matrix formed ----------------------------------------


def block_diagonal(blocks):
    n, d = blocks.shape[:2]
    dense = np.zeros((n, d, n, d))
    dense[np.arange(n), :, np.arange(n), :] = blocks
    return dense.reshape(n * d, n * d)


@dataclass(frozen=True)
class Dual:
    """f = offset + K alpha with the kernel as an (n, d, n, d) array."""

    kernel: np.ndarray
    targets: np.ndarray
    loss: str
    reg: float
    reg_scale: str = "mean"
    offset: np.ndarray | None = None

    @property
    def matrix(self):
        n, d = self.targets.shape
        return self.kernel.reshape(n * d, n * d)

    def rho(self, points):
        return self.reg * points if self.reg_scale == "mean" else self.reg

    def outputs(self, alpha):
        offset = 0.0 if self.offset is None else self.offset
        return offset + (self.matrix @ alpha.reshape(-1)).reshape(alpha.shape)

    def derivatives(self, alpha):
        """Gradient (n, d) and Hessian (n, d, d) of the losses at the outputs of alpha."""
        outputs = self.outputs(alpha)
        return GRADIENT[self.loss](outputs, self.targets), HESSIAN[self.loss](outputs, self.targets)

    def solve(self, hessians, rho, rhs):
        """(rho I + W K)^{-1} rhs."""
        system = rho * np.eye(rhs.size) + block_diagonal(hessians) @ self.matrix
        return np.linalg.solve(system, rhs.reshape(-1)).reshape(rhs.shape)

    def removal_residual(self, alpha, forget, delta):
        """Residual of one Newton step, on the retained rows, relative to its right-hand side.

        The system is (rho I + W K_RR) delta_R = -(rho alpha_R + g_R + W s), s = -K_RF alpha_F.
        """
        kept = np.setdiff1d(np.arange(len(alpha)), forget)
        g, w = self.derivatives(alpha)
        kernel = self.kernel[kept]
        rho = self.rho(len(kept))
        shift = -np.einsum("icje,je->ic", kernel[:, :, forget], alpha[forget])
        moved = np.einsum("icje,je->ic", kernel[:, :, kept], delta[kept])
        rhs = -(rho * alpha[kept] + g[kept] + np.einsum("ice,ie->ic", w[kept], shift))
        lhs = rho * delta[kept] + np.einsum("ice,ie->ic", w[kept], moved)
        return np.linalg.norm(lhs - rhs) / max(np.linalg.norm(rhs), 1.0)

    def first_order(self, alpha, forget):
        """First-order change of alpha, a trained model's, over all n rows."""
        n = len(alpha)
        g, w = self.derivatives(alpha)
        rhs = np.zeros_like(alpha)
        rhs[forget] = g[forget]
        if self.reg_scale == "mean":
            rhs = rhs + len(forget) * self.reg * alpha
        return self.solve(w, self.rho(n), rhs)


def squared_descent(kernel, residual, ridge, rate, steps):
    """alpha_k of alpha <- alpha - rate (ridge alpha + f - y), in the eigenbasis of the kernel.

    ``kernel`` is (n, n) and ``residual`` (n, d) is the targets minus the offset.
    """
    values, vectors = np.linalg.eigh(kernel)
    curvature = (ridge + values)[:, None]
    done = (1.0 - (1.0 - rate * curvature) ** steps) / curvature
    return vectors @ (done * (vectors.T @ residual))


# --- badly conditioned systems, with fifty digits ----------------------------------------------


@np.vectorize(otypes=[object])
def decimal(value):
    return Decimal(float(value))


def decimal_solve(matrix, rhs):
    """Gaussian elimination with row pivoting; object arrays of Decimals."""
    with localcontext(prec=50):
        a, b = decimal(matrix) if matrix.dtype != object else matrix.copy(), rhs.copy()
        for k in range(len(a)):
            pivot = k + max(range(len(a) - k), key=lambda i: abs(a[k + i, k]))
            a[[k, pivot]], b[[k, pivot]] = a[[pivot, k]], b[[pivot, k]]
            factors = a[k + 1 :, k] / a[k, k]
            a[k + 1 :] -= np.multiply.outer(factors, a[k])
            b[k + 1 :] -= np.multiply.outer(factors, b[k])
        x = 0 * b
        for k in range(len(a) - 1, -1, -1):
            x[k] = (b[k] - a[k, k + 1 :] @ x[k + 1 :]) / a[k, k]
        return x


def decimal_derivatives(outputs, targets, loss):
    """Gradient (n, d) and Hessian (n, d, d) of each point's loss, to fifty digits."""
    f, y = decimal(outputs), decimal(targets)
    n, d = f.shape
    with localcontext(prec=50):
        unit = decimal(np.eye(d))
        if loss == "squared":
            return f - y, np.stack([unit] * n)
        if loss == "logistic":
            odds = np.array([[(-v).exp() for v in row] for row in y * f], dtype=object)
            wrong = odds / (1 + odds)
            return -y * wrong, (wrong * (1 - wrong))[:, :, None]
        odds = np.array([[(v - max(row)).exp() for v in row] for row in f], dtype=object)
        p = odds / odds.sum(axis=1)[:, None]
        return p - y, p[:, :, None] * unit - p[:, :, None] * p[:, None, :]


# --- unlearning methods, on the parameters -----------------------------------------------------


def signed_gradient(primal, theta, weights, ridge):
    """Gradient of sum_i w_i loss_i + ridge/2 ||theta||^2 with weights of either sign."""
    g = GRADIENT[primal.loss](primal.outputs(theta), primal.targets)
    return primal.theta(weights[:, None] * g) + ridge * theta


def signed_hessian(primal, theta, weights, ridge):
    w = HESSIAN[primal.loss](primal.outputs(theta), primal.targets)
    J = primal.jacobian
    curved = np.einsum("icq,i,ice,ier->qr", J, weights, w, J, optimize=True)
    return curved + ridge * np.eye(J.shape[2])


def follow(primal, theta, weights, ridge, *, rate, steps, projector=None):
    """Steps of gradient descent on that objective, each projected if a projector is given."""
    for _ in range(steps):
        step = rate * signed_gradient(primal, theta, weights, ridge)
        theta = theta - (step if projector is None else projector @ step)
    return theta


def off_span(jacobian):
    """Projector off the gradients of all outputs of some points, (q, q)."""
    rows = jacobian.reshape(-1, jacobian.shape[2])
    _, values, vectors = np.linalg.svd(rows, full_matrices=False)
    kept = vectors[values > 1e-7 * max(values.max(initial=0.0), 1e-300)]
    return np.eye(rows.shape[1]) - kept.T @ kept


def rest_of_squares(primal, weights, ridge):
    """Where the gradient of the signed objective vanishes, for the squared loss."""
    zero = np.zeros(primal.jacobian.shape[2])
    hessian = signed_hessian(primal, zero, weights, ridge)
    return -np.linalg.solve(hessian, signed_gradient(primal, zero, weights, ridge))
