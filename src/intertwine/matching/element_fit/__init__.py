"""Element that brings one network closest to another: units matched, all fitted, changed tensors outvoted."""
