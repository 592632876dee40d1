"""A Gram matrix split among devices and processes: the answers of one device, and what travels."""

import json
import os
import re
import socket
import subprocess
import sys

import jax
import kernelinf as ki
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

N = 24

COMMON = """
import json, sys
import numpy as np, jax
import kernelinf as ki

rng = np.random.default_rng(0)
x, y, x_test = rng.normal(size=(24, 5)), np.arange(24) % 3, rng.normal(size=(4, 5))
y_test, forget = np.arange(4) % 3, [1, 4, 7, 20]
METHODS = (ki.FirstOrder(), ki.NewtonStep(), ki.Retrain(1e-14))
LOSSES = (("squared", y, y_test), ("cross_entropy", y, y_test))
network = ki.from_stax(ki.networks.fcnn(depth=1))

def answers(mesh):
    gram, found, exact = ki.gram(network, x, mesh=mesh, block_size=5), [], ki.Newton(tol=1e-14)
    for loss, labels, test_labels in LOSSES:
        model = ki.fit(gram, labels, loss=loss, reg=1e-2, solver=exact)
        assert model.converged
        found += [model.outputs, model.predict(x_test)]
        for method in METHODS:
            update = ki.remove(model, forget, method=method)
            found.append(update.effect(x_test, test_labels).losses)
        many = ki.remove_many(model, [forget, [3]], method=ki.Retrain(1e-14))
        found.append(many.effect(x_test).outputs)
        found.append(ki.influence(model, x_test, test_labels).values)
        found.append(ki.perturb(model, add=(x_test, test_labels)).effect(x_test).outputs)
    found.append(ki.fit(gram, y, solver=ki.KernelGradientDescent(20)).outputs)
    return [np.asarray(values) for values in found]
"""

ONE_PROCESS = (
    COMMON
    + """
assert len(jax.devices()) == 8
alone, split = answers(None), answers(ki.make_mesh())
worst = max(np.abs(a - b).max() / max(1e-3, np.abs(a).max()) for a, b in zip(alone, split))
print(json.dumps({"worst": float(worst), "count": len(alone)}))
"""
)

TWO_PROCESSES = (
    """
import sys
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
"""
    + COMMON
    + """
assert len(jax.devices()) == 2 and len(jax.local_devices()) == 1
split = answers(ki.make_mesh())
alone = answers(None)
worst = max(np.abs(a - b).max() / max(1e-3, np.abs(a).max()) for a, b in zip(alone, split))
print(json.dumps({"worst": float(worst), "count": len(alone)}))
"""
)


def start(code, *arguments, devices):
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def test_eight_devices_give_the_answers_of_one():
    found = result(start(ONE_PROCESS, devices=8))
    assert found["count"] == 17
    assert found["worst"] <= 1e-10


def test_two_processes_give_the_answers_of_one():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    processes = [start(TWO_PROCESSES, address, str(i), devices=1) for i in range(2)]
    for found in [result(process) for process in processes]:
        assert found["worst"] <= 1e-10


TRAVELS = """
import jax, numpy as np
import kernelinf as ki
from kernelinf._gram import _mesh
from jax.sharding import NamedSharding

mesh = ki.make_mesh()
with jax.enable_x64(True):
    sigma = jax.ShapeDtypeStruct((64, 64), np.float64, sharding=NamedSharding(mesh, _mesh.ROWS))
    rows = jax.ShapeDtypeStruct((3, 64), np.float64, sharding=NamedSharding(mesh, _mesh.EVERYWHERE))
    chosen = jax.ShapeDtypeStruct((2,), np.int64, sharding=NamedSharding(mesh, _mesh.EVERYWHERE))
    print(_mesh.product(mesh).lower(sigma, rows).compile().as_text())
    print(_mesh._picked(mesh).lower(sigma, chosen).compile().as_text())
    print(_mesh._diagonal(mesh).lower(sigma).compile().as_text())
    print(_mesh._squares(mesh).lower(sigma, 1.0).compile().as_text())
"""


def test_no_program_gathers_the_matrix():
    process = start(TRAVELS, devices=8)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "all-gather" in out
    gathered = re.findall(r"= f64\[([0-9,]*)\][^=]*all-(?:gather|reduce|to-all)", out)
    sizes = {int(np.prod([int(side) for side in shape.split(",") if side])) for shape in gathered}
    assert sizes
    assert max(sizes) <= 3 * 64  # of the matrix's 4,096


# --- in this process, on one device ---------------------------------------------------------------


def points(n=N):
    return np.random.default_rng(0).normal(size=(n, 5))


def test_a_mesh_of_one_device():
    gram = ki.gram(ki.rbf(1.0), points(), mesh=ki.make_mesh(N), block_size=7)
    np.testing.assert_allclose(gram @ np.eye(N), ki.rbf(1.0)(points()), atol=1e-14)
    assert "in blocks of rows on 1 devices" in repr(gram)
    with pytest.raises(ValueError, match="as one array, but it is in blocks of rows on 1 devices"):
        _ = gram.matrix


def test_what_is_looked_at_outside_warns_of_nothing():
    model = ki.fit(ki.gram(ki.rbf(1.0), points(), mesh=ki.make_mesh(N)), np.arange(N) % 2)
    assert f"{N} points" in repr(model)
    assert f"{N} -> {N - 1} points" in repr(ki.remove(model, [0]))
    assert model.problem.total == N
    assert model.problem.rho == pytest.approx(model.problem.reg * N)


def test_values_that_are_no_numbers_name_a_row():
    x = points()
    x[5] *= 1e200
    gram = ki.gram(ki.linear(), x, mesh=ki.make_mesh())
    with pytest.raises(FloatingPointError, match="NaN or infinite in row 5 and 0 others"):
        _ = gram.storage


def test_meshes_that_cannot_be_used():
    devices = np.array(jax.devices()[:1])
    with pytest.raises(TypeError, match=r"`mesh` is a int; pass ki.make_mesh\(\)"):
        ki.gram(ki.rbf(1.0), points(), mesh=3)
    with pytest.raises(ValueError, match=r"`mesh` has the axes \('x',\)"):
        ki.gram(ki.rbf(1.0), points(), mesh=Mesh(devices, ("x",), axis_types=(AxisType.Auto,)))
    with pytest.raises(ValueError, match="`points` is 0; pass the number of training points"):
        ki.make_mesh(0)
    for options, name in (({"store": "none"}, "store"), ({"dtype": "float32"}, "dtype")):
        with pytest.raises(ValueError, match=f"`{name}` and `mesh` were given"):
            ki.gram(ki.rbf(1.0), points(), mesh=ki.make_mesh(), **options)


def test_points_that_the_devices_do_not_divide():
    code = (
        "import kernelinf as ki, numpy as np\nki.gram(ki.rbf(1.0), np.eye(12), mesh=ki.make_mesh())"
    )
    _, err = start(code, devices=8).communicate(timeout=300)
    message = (
        "`mesh` has 8 devices, which do not divide 12 points; pass ki.make_mesh(12), which takes 6"
    )
    assert message in err
