"""All schedule algorithms, one short file each. Importing this package registers every algorithm."""

import importlib
import pkgutil

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f".{_file.name}", __name__)
