"""Spark: element topics and files as DataFrames; needs the extra `spark`.

Who owns what
    Importing this package checks that the extra is installed, and starts nothing; `session` starts
    a JVM. No other room imports this one but the commands, and those only when they are called.
"""

from importlib.util import find_spec

from lmerge_service.errors import EnvironmentMissingError

_NEEDED = ("pyspark", "pyarrow", "pandas", "deltalake")

if missing := [name for name in _NEEDED if find_spec(name) is None]:
    raise EnvironmentMissingError(
        f"Spark needs the extra 'spark' ({', '.join(missing)} is missing): "
        "pip install 'lmerge-service[spark]'"
    )
