"""The element that brings one network closest to another: units matched, scales fitted, changed tensors outvoted."""
