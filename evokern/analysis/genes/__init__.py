"""Analysis of genes: their effects, failures and ablation."""
