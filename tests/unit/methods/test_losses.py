"""Losses shared by papers; the numbers of the papers' cases are among the golden tests."""

import torch
import torch.nn.functional as F

from fedkin.core import Batch, Bundle, distillation
from toys import blobs, close, mlp


def test_a_teacher_on_live_features() -> None:
    """Equal to the student it adds nothing, to the gradient neither; without weights it teaches its bias."""
    net, data = mlp(), blobs(9, [1.0, 1, 1], 0)
    aux = Bundle(kappa=torch.tensor(3.0), temperature=torch.tensor(2.0), teacher=net.w0[net.head])
    grads = []
    for loss in (lambda w: distillation(net.training(), w, Batch(data.x, data.y), aux), None):
        w = net.w0.requires_grad_(True)
        value = F.cross_entropy(net.training()(w, data.x), data.y) if loss is None else loss(w)
        grads.append(torch.autograd.grad(value, w)[0])
    close(grads[0], grads[1])
    net, data = mlp(), blobs(9, [1.0, 1, 1], 0)
    aux = Bundle(kappa=torch.tensor(1.0), temperature=torch.tensor(1.0), teacher=net.w0[net.head])
    batch = Batch(data.x, data.y)
    same = distillation(net.training(), net.w0, batch, aux)
    weightless = torch.cat([torch.zeros(18), net.w0[net.head][18:]])
    other = distillation(net.training(), net.w0, batch, aux.but(teacher=weightless))
    logits = net(net.w0, data.x)
    taught = F.softmax(net.w0[net.head][18:], 0).expand(9, 3)
    wanted = F.cross_entropy(logits, data.y) + F.kl_div(F.log_softmax(logits, 1), taught, reduction="batchmean")
    close(other, wanted)
    close(same, F.cross_entropy(logits, data.y))
