"""raylib: finding an installed one, linking and drawing with it, and the stand-in without it.

The stand-in's arithmetic is checked against NumPy.
"""

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kept import edit
from native_envs import Stepper, make, squared

from puffer_mlx.errors import UserError
from puffer_mlx.system.compiler import compile_shared, source_files
from puffer_mlx.vec.native import raylib
from puffer_mlx.vec.native.raylib import find_raylib
from puffer_mlx.vec.native.sources import environments_folder
from puffer_mlx.vec.native.vec import NativeVec

INCLUDE = environments_folder() / "include"
STAND_IN = INCLUDE / "raylib"
C = Path(__file__).parents[1] / "c"


# ---- The stand-in's functions by name -----------------------------------------------------------


def struct(size: int) -> type[ctypes.Structure]:
    """Return a ctypes struct of ``size`` floats."""
    fields = [(f"f{i}", ctypes.c_float) for i in range(size)]
    return type(f"Floats{size}", (ctypes.Structure,), {"_fields_": fields})


class Hit(ctypes.Structure):
    """Raylib's struct RayCollision for ctypes."""

    _fields_ = (("hit", ctypes.c_bool), ("distance", ctypes.c_float), ("at", struct(6)))


TYPES = {
    "": None,
    "f": ctypes.c_float,
    "i": ctypes.c_int,
    "u": ctypes.c_uint,
    "b": ctypes.c_bool,
    "h": Hit,
    **{str(size): struct(size) for size in (2, 3, 4, 6)},
    "m": struct(16),
}


@pytest.fixture(scope="module")
def call() -> Callable:
    """Return a function that calls a function of the raylib stand-in.

    Arguments: name, letters of TYPES, and the function's arguments.
    """
    sources = environments_folder() / "src"
    path = compile_shared(
        "raymath",
        [C / "raymath.c", sources / "host.c", sources / "rand_r.c"],
        ["-O1", "-std=gnu11", "-ffp-contract=off", "-Wall", "-Werror", f"-I{STAND_IN}", "-lm"],
        depends=source_files(STAND_IN),
    )
    library = ctypes.CDLL(str(path))
    library.function_of.restype = ctypes.c_void_p

    def pack(letter: str, value):
        if letter in "fiub":
            return TYPES[letter](value)
        return TYPES[letter](*np.asarray(value, np.float32).reshape(-1))

    def call(name: str, result: str, letters: str, *values):
        at = library.function_of(name.encode())
        assert at, name
        function = ctypes.CFUNCTYPE(TYPES[result], *(TYPES[letter] for letter in letters))(at)
        found = function(*map(pack, letters, values))
        if not isinstance(found, ctypes.Structure) or result == "h":
            return found
        array = np.array([getattr(found, field[0]) for field in found._fields_])
        return array.reshape(4, 4) if result == "m" else array

    return call


def near(found, expected, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def rotation(axis: np.ndarray, angle: float) -> np.ndarray:
    """Return the rotation matrix (3, 3) about an axis, by Rodrigues' formula."""
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def affine(upper: np.ndarray, move: np.ndarray | None = None) -> np.ndarray:
    matrix = np.eye(4)
    matrix[:3, :3] = upper
    matrix[:3, 3] = 0 if move is None else move
    return matrix


# ---- Arithmetic ---------------------------------------------------------------------------------


def test_functions_of_numbers_equal_values_by_hand(call):
    assert call("Clamp", "f", "fff", 3, -1, 2) == 2 and call("Clamp", "f", "fff", -3, -1, 2) == -1
    assert call("Lerp", "f", "fff", 2, 4, 0.25) == 2.5
    assert call("Normalize", "f", "fff", 3, 2, 4) == 0.5
    assert call("Remap", "f", "fffff", 3, 2, 4, 10, 30) == 20
    assert call("Wrap", "f", "fff", 370, 0, 360) == 10


def test_functions_of_vectors_equal_numpy(call):
    rng = np.random.default_rng(5)
    for _ in range(20):
        a, b = rng.normal(size=(2, 3))
        p, q = a[:2], b[:2]
        near(call("Vector2Add", "2", "22", p, q), p + q)
        near(call("Vector2Subtract", "2", "22", p, q), p - q)
        near(call("Vector2Scale", "2", "2f", p, 3), 3 * p)
        near(call("Vector2Distance", "f", "22", p, q), np.linalg.norm(p - q))
        near(call("Vector2Normalize", "2", "2", p), p / np.linalg.norm(p))
        angle = call("Vector2Angle", "f", "22", p, q)
        turned = call("Vector2Rotate", "2", "2f", p / np.linalg.norm(p), angle)
        near(turned, q / np.linalg.norm(q))
        near(call("Vector3CrossProduct", "3", "33", a, b), np.cross(a, b))
        near(call("Vector3DotProduct", "f", "33", a, b), a @ b)
        cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        near(call("Vector3Angle", "f", "33", a, b), np.arccos(cosine), 1e-4)
    near(call("Vector2Normalize", "2", "2", [0, 0]), [0, 0])


def test_functions_of_matrices_equal_numpy(call):
    rng = np.random.default_rng(5)
    for _ in range(20):
        a, b = rng.normal(size=(2, 4, 4))
        v, w = rng.normal(size=(2, 3))
        near(call("MatrixMultiply", "m", "mm", a, b), b @ a)  # a first
        near(call("MatrixTranspose", "m", "m", a), a.T)
        near(call("MatrixDeterminant", "f", "m", a), np.linalg.det(a), 1e-4)
        near(call("MatrixInvert", "m", "m", a), np.linalg.inv(a), 2e-3)
        near(call("Vector3Transform", "3", "3m", v, a), (a @ [*v, 1])[:3])
        near(call("MatrixTranslate", "m", "fff", *v), affine(np.eye(3), v))
        near(call("MatrixScale", "m", "fff", *v), affine(np.diag(v)))
        near(call("MatrixRotate", "m", "3f", v, 0.7), affine(rotation(v, 0.7)))
        turns = [rotation(axis, angle) for axis, angle in zip(np.eye(3), w, strict=True)]
        for axis, turn, angle in zip("XYZ", turns, w, strict=True):
            near(call(f"MatrixRotate{axis}", "m", "f", angle), affine(turn))
        near(call("MatrixRotateXYZ", "m", "3", w), affine(turns[0] @ turns[1] @ turns[2]))


def test_quaternions_rotate_like_matrices(call):
    rng = np.random.default_rng(5)
    for _ in range(20):
        axis, v, w = rng.normal(size=(3, 3))
        angle = rng.uniform(-3, 3)
        turn = rotation(axis, angle)
        q = call("QuaternionFromAxisAngle", "4", "3f", axis, angle)
        near(call("QuaternionToMatrix", "m", "4", q), affine(turn))
        near(call("Vector3RotateByQuaternion", "3", "34", v, q), turn @ v)
        again = call("QuaternionFromMatrix", "4", "m", affine(turn))
        near(again * np.sign(again @ q), q, 1e-4)
        other = call("QuaternionFromAxisAngle", "4", "3f", w, 0.5)
        product = call("QuaternionMultiply", "4", "44", q, other)
        near(call("QuaternionToMatrix", "m", "4", product), affine(turn @ rotation(w, 0.5)))
        inverse = call("QuaternionInvert", "4", "4", 2 * q)
        near(call("QuaternionMultiply", "4", "44", 2 * q, inverse), [0, 0, 0, 1])


def test_shapes_collide(call):
    assert call("CheckCollisionRecs", "b", "44", [0, 0, 2, 2], [1, 1, 5, 5])
    assert not call("CheckCollisionRecs", "b", "44", [0, 0, 2, 2], [2, 0, 5, 5])  # they touch
    near(call("GetCollisionRec", "4", "44", [0, 0, 2, 2], [1, -1, 5, 2]), [1, 0, 1, 1])
    assert call("CheckCollisionCircles", "b", "2f2f", [0, 0], 1, [3, 4], 4)
    assert not call("CheckCollisionCircles", "b", "2f2f", [0, 0], 1, [3, 4], 3.9)
    assert call("CheckCollisionCircleRec", "b", "2f4", [4, 5], 5.01, [-9, -9, 10, 10])  # its corner
    assert not call("CheckCollisionCircleRec", "b", "2f4", [4, 5], 4.99, [-9, -9, 10, 10])
    assert call("CheckCollisionPointRec", "b", "24", [0, 0], [0, 0, 1, 1])
    assert not call("CheckCollisionPointRec", "b", "24", [1, 0], [0, 0, 1, 1])
    box = [0, 0, 0, 2, 2, 2]
    assert call("CheckCollisionBoxes", "b", "66", box, [1, 1, 1, 3, 3, 3])
    assert not call("CheckCollisionBoxes", "b", "66", box, [1, 1, 2.1, 3, 3, 3])
    assert call("CheckCollisionSpheres", "b", "3f3f", [0, 0, 0], 1, [2, 2, 1], 2)
    assert not call("CheckCollisionSpheres", "b", "3f3f", [0, 0, 0], 1, [2, 2, 1], 1.9)


def test_ray_hits_shapes_at_their_distance(call):
    ray, beside = [-3, 1, 1, 1, 0, 0], [-3, 3, 3, 1, 0, 0]
    hit = call("GetRayCollisionBox", "h", "66", ray, [0, 0, 0, 2, 2, 2])
    assert hit.hit and hit.distance == 3
    assert not call("GetRayCollisionBox", "h", "66", beside, [0, 0, 0, 2, 2, 2]).hit
    hit = call("GetRayCollisionSphere", "h", "63f", ray, [1, 1, 1], 1)
    assert hit.hit and hit.distance == 3
    assert not call("GetRayCollisionSphere", "h", "63f", beside, [1, 1, 1], 1).hit


def test_random_numbers_are_uniform_and_seeded(call):
    def draw(seed: int, count: int = 3000) -> list[int]:
        call("SetRandomSeed", "", "u", seed)
        return [call("GetRandomValue", "i", "ii", 5, -4) for _ in range(count)]

    drawn = draw(1)
    assert set(drawn) == set(range(-4, 6)) and draw(1) == drawn and draw(2) != drawn
    assert np.bincount(np.array(drawn) + 4).min() > 240  # of 300


def test_functions_that_draw_do_nothing(call):
    assert not call("WindowShouldClose", "b", "") and not call("IsKeyDown", "b", "i", 65)
    assert call("GetScreenWidth", "i", "") > 0
    assert call("GetFrameTime", "f", "") == pytest.approx(1 / 60)


# ---- Finding one --------------------------------------------------------------------------------

HEADER = """
#define RAYLIB_VERSION "9.9"
typedef struct Texture { unsigned int id; } Texture2D;
enum { LOG_WARNING = 4 };
void SetTraceLogLevel(int level);
Texture2D LoadTexture(const char* path);
int GetRandomValue(int min, int max);
void SetRandomSeed(unsigned int seed);
int DrawnFrames(void);
"""
LIBRARY = """
#include "raylib.h"
#include <unistd.h>
static int frames;
void SetTraceLogLevel(int level) { (void)level; }
Texture2D LoadTexture(const char* path) { return (Texture2D){access(path, R_OK) == 0}; }
int GetRandomValue(int min, int max) { return min + 0 * max; }  // must not be called
void SetRandomSeed(unsigned int seed) { (void)seed; }
int DrawnFrames(void) { return ++frames; }
"""


def install(prefix: Path, static: bool = False) -> Path:
    """Compile and install a stand-in for raylib that counts frames; return its prefix."""
    for name in "include", "lib":
        (prefix / name).mkdir(parents=True)
    (prefix / "include" / "raylib.h").write_text(HEADER)
    (prefix / "raylib.c").write_text(LIBRARY)
    compile_c = ["cc", "-fPIC", f"-I{prefix}/include", str(prefix / "raylib.c"), "-o"]
    if static:
        subprocess.run([*compile_c, str(prefix / "raylib.o"), "-c"], check=True)
        archive = str(prefix / "lib" / "libraylib.a")
        subprocess.run(["ar", "rcs", archive, str(prefix / "raylib.o")], check=True)
    else:
        name, soname = "libraylib.dylib", []
        if sys.platform != "darwin":  # there, a library is known by its path
            name, soname = "libcounted.so", ["-Wl,-soname,libcounted.so"]
            (prefix / "lib" / "libraylib.so").symlink_to(name)
        subprocess.run([*compile_c, str(prefix / "lib" / name), "-shared", *soname], check=True)
    return prefix


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide any raylib that is installed on this machine."""
    monkeypatch.delenv("RAYLIB_PATH", raising=False)
    monkeypatch.setenv("PKG_CONFIG_LIBDIR", str(tmp_path / "nothing"))
    monkeypatch.setattr(
        raylib, "_SYSTEM_PREFIXES", (str(tmp_path / "homebrew"), str(tmp_path / "usr"))
    )
    monkeypatch.setattr(raylib, "_STATIC_LIBRARIES", [])


OF_5_0 = """
typedef float obs_t;
#include "pufferenv.h"  // includes raylib.h
#define OBS_SIZE 1
#define NUM_ATNS 1
#define ACT_SIZES {2}
#define PUF_STEPS_PER_SEC 500
struct Log { float score, n; };
struct Env { Log log; Agent agents[1]; int num_agents, tag, boundary_reached; unsigned rng; };
void puf_init(Env* env, Dict* kwargs) { env->num_agents = 1; }
void puf_reset(Env* env) {}
void puf_step(Env* env) {}
void puf_render(Env* env) { if (DrawnFrames() > 3) exit(0); }
void puf_close(Env* env) {}
void puf_log(Log* log, Dict* out) {}
"""


@pytest.mark.usefixtures("nothing_installed")
def test_environment_of_5_0_draws_in_a_window(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    folder = tmp_path / "drawn"
    folder.mkdir()
    (folder / "drawn.h").write_text(OF_5_0)
    monkeypatch.setenv("RAYLIB_PATH", str(install(tmp_path / "raylib", static=True)))
    with NativeVec(folder, total_agents=1, env={}) as vec:
        assert vec.can_render
        assert [vec.render() for _ in range(4)] == [True, True, True, False]


@pytest.mark.usefixtures("nothing_installed")
def test_raylib_is_searched_in_known_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def found(*near: Path) -> raylib.Raylib:
        installed = find_raylib(near)
        assert installed is not None
        return installed

    assert find_raylib() is None
    system = install(tmp_path / "usr")
    assert found().version == "9.9" and found().library.parent == system / "lib"
    assert {f"-L{system / 'lib'}", "-lraylib"} <= {*found().flags()}
    if shutil.which("pkg-config"):
        prefix = install(tmp_path / "packaged")
        (tmp_path / "raylib.pc").write_text(
            f"prefix={prefix}\nlibdir={prefix}/lib\nincludedir={prefix}/include\n"
            "Name: raylib\nDescription: x\nVersion: 9.9\nLibs: -L${libdir} -lraylib\n"
        )
        monkeypatch.setenv("PKG_CONFIG_LIBDIR", str(tmp_path))
        assert found().library.parent == prefix / "lib"
    brewed = install(tmp_path / "homebrew", static=True)
    monkeypatch.delenv("PKG_CONFIG_LIBDIR")
    unpacked = install(tmp_path / "repository" / "raylib-5.5_linux_amd64")
    assert found(tmp_path / "repository").header.is_relative_to(unpacked)
    monkeypatch.setenv("RAYLIB_PATH", str(brewed))
    assert str(brewed / "lib" / "libraylib.a") in found(tmp_path / "repository").flags()
    monkeypatch.setenv("RAYLIB_PATH", "none")
    assert find_raylib([tmp_path / "repository"]) is None
    monkeypatch.setenv("RAYLIB_PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"where there is no raylib: include/raylib\.h"):
        find_raylib()


# ---- Drawing ------------------------------------------------------------------------------------

RENDER = """
    const unsigned int found = LoadTexture("resources/picture.png").id;
    env->log.n += found == 1 && DrawnFrames() <= 3 ? 1.0f : 100.0f;
    if (env->log.n > 2.5f) {
        exit(0);
    }
"""


@pytest.mark.usefixtures("nothing_installed")
def test_environment_draws_until_it_exits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Random numbers remain those of the stand-in."""
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(tmp_path / "cache"))
    folder = squared(tmp_path / "repository" / "ocean" / "drawn", "GetRandomValue(0, 120)")
    edit(folder / "squared.h", "(void)env;\n}\n\n// Free", f"{RENDER}}}\n\n// Free")
    (tmp_path / "repository" / "resources").mkdir()
    (tmp_path / "repository" / "resources" / "picture.png").write_text("")
    monkeypatch.setenv("RAYLIB_PATH", str(install(tmp_path / "prefix")))
    with NativeVec(folder, total_agents=4, env={"size": 5}) as vec:
        stepper = Stepper(vec)
        assert vec.can_render and vec.description.endswith("in a window")
        targets = (stepper.rows.observations == 2).argmax(axis=1)
        assert len(set(targets)) > 1  # the library's own GetRandomValue would give 0
        assert [vec.render(1) for _ in range(3)] == [True, True, False]
        stepper.step(np.ones((4, 1), np.float32))  # it can still be stepped, and looked at
        assert vec.log()["n"] == 3
        with pytest.raises(IndexError, match="environment 4, expected 0 to 3"):
            vec.render(4)


@pytest.mark.usefixtures("nothing_installed")
def test_missing_window_is_explained():
    with make("orbit", total_agents=6) as vec:
        assert not vec.can_render
        with pytest.raises(UserError, match=r"(?s)orbit .* raylib isn't inst.*hint: .*install ray"):
            vec.render()


def test_window_needs_the_main_thread_on_macos(monkeypatch: pytest.MonkeyPatch):
    with make("metro", total_agents=6) as vec:
        vec.can_render = True
        monkeypatch.setattr("threading.current_thread", lambda: None)
        monkeypatch.setattr(sys, "platform", "darwin")
        with pytest.raises(UserError, match="on the main thread only"):
            vec.render()
