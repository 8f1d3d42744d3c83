"""Many byte strings read at the same time with numpy, for the decoders of Avro and Protobuf."""
