"""The run-time checker of jaxtyping's annotations: an int may stand where a float is asked for."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
