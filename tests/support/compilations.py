"""Counting of the programs that JAX compiles."""

import contextlib

import jax


@contextlib.contextmanager
def counted_compilations():
    """Yield a list that gets one entry per program that is compiled in this context."""
    found = []

    def listen(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
