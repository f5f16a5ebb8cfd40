"""Rules for operations that look entries up: indices, routing to experts, scattering."""
