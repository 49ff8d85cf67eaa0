"""A result as something that stands alone."""

from evokern.export.banner import Provenance
from evokern.export.from_store import Exported, export_trial
from evokern.export.standalone import standalone

__all__ = ["Exported", "Provenance", "export_trial", "standalone"]
