"""What a Gram matrix is like, and data that networks take without a word and answer wrongly."""

import warnings

import jax.numpy as jnp
import kernelinf as ki
import numpy as np
import pytest
from kernelinf import _inspection, stax


def points(n=12, p=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, p))


# --- the report ---------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 5000])
def test_eigenvalues_are_those_of_the_matrix(limit, monkeypatch):
    monkeypatch.setattr(_inspection, "EXACT_SIDE", limit)
    gram = ki.gram(ki.rbf(1.0), points())
    found, truth = ki.inspect(gram), np.linalg.eigvalsh(gram.matrix)
    assert found.largest == pytest.approx(truth[-1], rel=1e-6)
    if limit:
        np.testing.assert_allclose(found.eigenvalues, truth)
        hat = gram.matrix @ np.linalg.inv(gram.matrix + 0.1 * 12 * np.eye(12))
        assert found.effective_dimension(0.1) == pytest.approx(np.trace(hat))
        assert found.rank == 12
    else:
        assert found.smallest is None
        assert found.rank is None
        with pytest.raises(ValueError, match="were not computed: it is too large"):
            found.effective_dimension(0.1)
    assert "duplicates: none" in str(found)


def test_duplicates_are_counted_and_named():
    x = points()[[0, 1, 2, 0, 3, 1, 0, 4]]
    for gram in (ki.gram(ki.linear(), x), ki.gram(x @ x.T)):
        found = ki.inspect(gram)
        assert [group.tolist() for group in found.duplicates] == [[0, 3, 6], [1, 5]]
        assert "3 points repeat others: 0 = 3 = 6, 1 = 5" in str(found)
        assert found.rank == 4
        assert "4 of 8 are zero to rounding" in str(found)


def test_blocks_and_matrices_elsewhere(tmp_path):
    blocks = np.einsum("ij,ce->icje", ki.rbf(1.0)(points()), np.diag([1.0, 2.0]))
    found = ki.inspect(ki.gram(blocks))
    assert len(found.eigenvalues) == 24
    assert found.duplicates == ()
    memory = ki.inspect(ki.gram(ki.rbf(1.0), points()))
    for options in ({"store": tmp_path}, {"store": "none"}, {"dtype": "float32"}):
        elsewhere = ki.inspect(ki.gram(ki.rbf(1.0), points(), **options))
        assert elsewhere.largest == pytest.approx(memory.largest, rel=1e-5)
        assert "the largest is" in str(elsewhere)


ELSEWHERE = ({}, {"store": "none"}, {"dtype": "float32"}, {"mesh": ki.make_mesh(1)})


@pytest.mark.parametrize("options", ELSEWHERE)
def test_one_point_and_a_matrix_of_zeros(options):
    one = ki.inspect(ki.gram(ki.rbf(1.0), points(1), **options))
    assert (one.smallest, one.largest, one.rank) == (1.0, 1.0, 1)
    assert one.effective_dimension(0.25) == pytest.approx(0.8)
    zero = ki.inspect(ki.gram(ki.linear(), 0 * points(), **options))
    assert zero.largest == zero.smallest_reg == 0
    assert len(zero.duplicates) == 1


def test_the_smallest_reg_trains():
    x = points(20, 2)
    gram = ki.gram(x @ x.T)
    reg = ki.inspect(gram).smallest_reg
    for loss in ("squared", "cross_entropy", "logistic"):
        assert ki.fit(gram, np.arange(20) % 2, loss=loss, reg=reg).converged
    condition = 1 + np.linalg.eigvalsh(gram.matrix)[-1] / (reg * 20)
    assert condition == pytest.approx(1e10)


def test_what_cannot_be_inspected():
    with pytest.raises(TypeError, match=r"`gram` is a ndarray; pass ki\.gram"):
        ki.inspect(np.eye(3))
    with pytest.raises(ValueError, match="`reg` is 0; pass a positive number"):
        ki.inspect(ki.gram(np.eye(3))).effective_dimension(0)


# --- traps --------------------------------------------------------------------------------------

CNN = ki.networks.cnn(depth=1)


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 6, 6)])
def test_channels_first_are_named(shape):
    x = points(3, int(np.prod(shape))).reshape(3, *shape)
    with pytest.warns(UserWarning, match=r"look like images with channels first.*np.moveaxis"):
        ki.gram(ki.from_stax(CNN), x)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (CNN, (8, 8, 3)),
        (CNN, (8, 8, 1)),
        (CNN, (3, 8, 6)),
        (CNN, (3, 3, 3)),
        (ki.networks.fcnn(depth=1), (3, 8, 8)),
        (ki.networks.fcnn(depth=1), (192,)),
    ],
)
def test_other_points_are_not(network, shape):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ki.gram(ki.from_stax(network), points(3, int(np.prod(shape))).reshape(3, *shape))


def centred(x1, x2=None, get=None):
    """A kernel function of its own make that centres every batch."""
    _, _, kernel_fn = ki.networks.fcnn(depth=1)
    return kernel_fn(x1 - x1.mean(axis=0), None if x2 is None else x2 - x2.mean(axis=0), get)


def alike(x1, x2=None, get=None):
    """One that does not."""
    return ki.networks.fcnn(depth=1)[2](x1, x2, get)


def test_values_that_depend_on_the_batch_are_refused():
    with pytest.raises(ValueError, match="another kernel value with other points in its batch"):
        ki.gram(ki.from_stax(centred), points())
    gram = ki.gram(ki.from_stax(alike), points())
    np.testing.assert_allclose(gram.matrix, ki.from_stax(ki.networks.fcnn(depth=1))(points()))


def nested(last):
    return stax.serial(stax.serial(stax.Dense(8), stax.Relu(), stax.Dense(8)), stax.serial(*last))


def test_nested_networks_are_looked_into():
    with pytest.raises(ValueError, match="no readout"):
        ki.gram(ki.from_stax(nested([stax.Relu()])), points())
    assert ki.gram(ki.from_stax(nested([stax.Relu(), stax.Dense(1)])), points()).n == 12
    dropped = nested([stax.Relu(), stax.Dropout(0.5, mode="train"), stax.Dense(1)])
    with pytest.raises(ValueError, match="Dropout in its 'train' mode"):
        ki.from_stax(dropped)


@pytest.mark.parametrize(
    "x", [jnp.zeros((3, 4), jnp.uint8), np.zeros((3, 4), np.uint8), [np.zeros(4, np.uint8)] * 3]
)
def test_pixels_that_are_not_scaled_are_refused_however_they_come(x):
    with pytest.raises(ValueError, match="holds unscaled pixels"):
        ki.gram(ki.linear(), x)


def test_a_network_that_overflows_is_named_by_its_first_block():
    hidden = [stax.Dense(1, 1e6), stax.Relu()] * 30
    kernel = ki.from_stax(stax.serial(*hidden, stax.Dense(1)))
    with pytest.raises(FloatingPointError, match=r"rows 0 to 3.*lower w_std or the depth"):
        _ = ki.gram(kernel, points(), block_size=4).matrix
