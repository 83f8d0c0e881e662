//! Generates the wire: messages, servers and clients from `proto/`, and the descriptors that
//! reflection serves. No `protoc` is needed.

use std::error::Error;
use std::path::PathBuf;

use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::Type;

const PROTOS: [&str; 3] = [
    "chronosdb/v1/rate_limiter.proto",
    "envoy/service/auth/v3/external_auth.proto",
    "envoy/service/ratelimit/v3/rls.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=build.rs");
    let out_dir = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);

    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true).open_files(PROTOS)?;
    let mut descriptors = compiler.file_descriptor_set();
    let reflected = protox::Compiler::new(["proto"])?
        .include_imports(true)
        .open_files(PROTOS)?
        .encode_file_descriptor_set();
    std::fs::write(out_dir.join("reflection.bin"), reflected)?;

    decode_entries_as_bytes(&mut descriptors)?;
    decode_attributes_as_bytes(&mut descriptors)?;
    tonic_prost_build::configure()
        .extern_path(".envoy.config.core.v3", "::envoy_types::pb::envoy::config::core::v3")
        .extern_path(".google.protobuf", "::envoy_types::pb::google::protobuf")
        .extern_path(".google.rpc", "::envoy_types::pb::google::rpc")
        // Their types come from envoy-types too, by the extern path above.
        .compile_well_known_types(true)
        .compile_fds(descriptors)?;
    Ok(())
}

/// Envoy puts raw header bytes into descriptor entries. As `string` they would have to be UTF-8,
/// and a client could switch its limit off with one odd byte; `bytes` look the same on the wire.
/// Only the generated code differs: reflection keeps `string`, so that tools send and show text.
fn decode_entries_as_bytes(descriptors: &mut FileDescriptorSet) -> Result<(), &'static str> {
    let entry = descriptors
        .file
        .iter_mut()
        .filter(|file| file.package() == "envoy.extensions.common.ratelimit.v3")
        .flat_map(|file| &mut file.message_type)
        .filter(|message| message.name() == "RateLimitDescriptor")
        .flat_map(|message| &mut message.nested_type)
        .find(|message| message.name() == "Entry")
        .ok_or("proto/ has no RateLimitDescriptor.Entry")?;
    for field in &mut entry.field {
        field.set_type(Type::Bytes);
    }
    Ok(())
}

/// What Envoy knows of a request comes from its client as well, so the same holds. Metadata, which
/// other filters may fill from headers, stays undecoded until somebody asks for a value of it.
fn decode_attributes_as_bytes(descriptors: &mut FileDescriptorSet) -> Result<(), &'static str> {
    let attributes = descriptors
        .file
        .iter_mut()
        .filter(|file| file.package() == "envoy.service.auth.v3")
        .flat_map(|file| &mut file.message_type)
        .find(|message| message.name() == "AttributeContext")
        .ok_or("proto/ has no AttributeContext")?;
    let mut messages = vec![attributes];
    while let Some(message) = messages.pop() {
        for field in &mut message.field {
            let is_metadata = field.type_name() == ".envoy.config.core.v3.Metadata";
            // The codec of HTTP takes only ASCII for the name of a header.
            if is_metadata || (field.r#type() == Type::String && field.name() != "key") {
                field.set_type(Type::Bytes);
                field.type_name = None;
            }
        }
        messages.extend(&mut message.nested_type);
    }
    Ok(())
}
