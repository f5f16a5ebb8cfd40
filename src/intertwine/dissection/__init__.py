"""Network dissection: is the neuron basis special?"""
