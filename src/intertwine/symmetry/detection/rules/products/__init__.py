"""Rules for operations that multiply and add: linear maps, functions of matrices, attention, distances, Fourier."""
