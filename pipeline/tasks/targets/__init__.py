"""What is predicted: classes, labels, numbers, masks, boxes, transcripts.

A target decodes y, adds the output layer, has loss and metrics, and turns outputs into
predictions. How these are measured is in `evaluation/targets`, how they look in
`report/targets`.
"""
