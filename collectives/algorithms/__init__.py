"""Every algorithm, one short file each; importing this package registers what is in all of them."""

import importlib
import pkgutil

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f".{_file.name}", __name__)
