"""One step of AdamW. Second moments drawn normal are negative: their root is no number."""

from __future__ import annotations


def reference(p, t):
    m, v, w = t["m_memory"], t["v_memory"], t["params_memory"]
    return {"m_memory": m, "v_memory": v, "params_memory": w - (m / (v.sqrt() + 1) + w)}


REFERENCE_H = """
for (int i = 0; i < NUM_PARAMETERS; i++) {
  m_memory_out[i] = m_memory[i];
  v_memory_out[i] = v_memory[i];
  params_memory_out[i] = -m_memory[i] / (std::sqrt(v_memory[i]) + 1);
}
"""
TOLERANCE = {"params_memory": (0.001, 0.001), "m_memory": (0.001, 0.001), "v_memory": (0.001, 0.001)}
PROBLEM = "1000000"
WRONG_INDEX = ("grads_memory[i]", "grads_memory[0]")
