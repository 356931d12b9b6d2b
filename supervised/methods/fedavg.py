"""FedAvg (McMahan et al. 2017): local SGD and the mean of the models."""

from supervised.methods.method import Method

FEDAVG = Method("FedAvg")
