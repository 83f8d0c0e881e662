//! Compiles `proto/`, without protoc.

use std::path::PathBuf;

use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};
use protox::prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["chronosdb/v1/rate_limiter.proto", "envoy/rls.proto"];
    println!("cargo:rerun-if-changed=proto");
    let mut descriptors = protox::compile(files, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("reflection.bin"), descriptors.encode_to_vec())?;

    entries_are_bytes(&mut descriptors);
    tonic_prost_build::configure()
        // Their types come from envoy-types too, by the extern path below.
        .compile_well_known_types(true)
        .extern_path(".envoy.config.core.v3", "::envoy_types::pb::envoy::config::core::v3")
        .extern_path(".google.protobuf", "::envoy_types::pb::google::protobuf")
        .compile_fds(descriptors)?;
    Ok(())
}

/// Same on the wire; but a string that is not UTF-8 cannot be decoded, and the error would switch
/// off the limit of a client that sends one odd byte.
fn entries_are_bytes(descriptors: &mut FileDescriptorSet) {
    let messages = descriptors.file.iter_mut().flat_map(|file| &mut file.message_type);
    let nested: Vec<&mut DescriptorProto> =
        messages.flat_map(|message| &mut message.nested_type).collect();
    for entry in nested.into_iter().filter(|message| message.name() == "Entry") {
        for field in &mut entry.field {
            field.set_type(Type::Bytes);
        }
    }
}
