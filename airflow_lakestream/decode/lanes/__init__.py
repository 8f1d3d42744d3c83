"""Many byte strings read side by side with numpy: what Avro and Protobuf are decoded with."""
