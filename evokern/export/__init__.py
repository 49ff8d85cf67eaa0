"""Export of results: standalone programs, and files in exchange formats."""

from evokern.export.banner import Provenance
from evokern.export.from_store import Exported, export_trial
from evokern.export.standalone import standalone

__all__ = ["Exported", "Provenance", "export_trial", "standalone"]
