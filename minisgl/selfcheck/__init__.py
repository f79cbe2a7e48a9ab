"""Does everything compute on this machine what its reference computes?"""
