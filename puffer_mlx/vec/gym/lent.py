"""A constructor for an existing ``gymnasium.Env``, for a run with one environment."""

from collections.abc import Callable
from typing import Any

from puffer_mlx.errors import UserError


def lend(env: Any) -> Callable[..., Any]:
    """Return a constructor that returns an existing environment, to one user at a time.

    Args:
        env: A ``gymnasium.Env``. It is never closed.
    """
    import gymnasium

    name, out = type(env.unwrapped).__name__, []

    class Lent(gymnasium.Wrapper):
        def close(self) -> None:
            if self in out:
                out.remove(self)

    def make(render_mode: str | None = None) -> gymnasium.Env:
        if out:
            again = f'"gym:{env.spec.id}"' if env.spec else f"{name}, or lambda: {name}(…)"
            raise UserError(
                f"{name} is one environment, an object, and the run takes several",
                f"give what makes it: {again}; or with this one: total_agents=1",
            )
        if render_mode is not None and env.render_mode != render_mode:
            raise UserError(
                f"{name} can't be drawn: its render_mode is {env.render_mode}",
                f'make it with render_mode="{render_mode}"',
            )
        out.append(Lent(env))
        return out[0]

    return make
